"""What the search believes about candidates: features of a program, and models that rank them."""
