"""Which process renders, acts or learns on which device."""
