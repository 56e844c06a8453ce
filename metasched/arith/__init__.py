"""What can be proved about integers: bounds, simplification, iterator maps, regions."""
