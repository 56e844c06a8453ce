"""Ways to say a program other than as a script: blocks in Python, tensor expressions, einsum."""
