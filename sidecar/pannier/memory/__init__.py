"""`pannier memory`: what one model takes with settings that a person names, from its header."""
