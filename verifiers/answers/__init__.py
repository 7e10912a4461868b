"""Reading and comparing mathematical answers: extract, normalise, parse, compare; sympy only as the last resort."""
