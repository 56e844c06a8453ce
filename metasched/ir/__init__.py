"""Programs: types, expressions, statements, functions, and how to walk, compare and run them."""
