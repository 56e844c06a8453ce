"""What a program is: types, expressions, statements, functions, and how to walk and compare them."""
