"""`pannier demo`: a real chat with a real small model, from nothing, in one command."""
