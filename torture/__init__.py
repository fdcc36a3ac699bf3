"""Kill -9 and power cuts under load, with every promise of the broker checked."""
