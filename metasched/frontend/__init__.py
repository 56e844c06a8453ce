"""Ways to write a program other than a script: blocks in Python, tensor expressions, einsum."""
