"""How far a load is: reports in, progress out."""
