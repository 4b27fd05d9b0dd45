"""Small faults in the sources, each of which some test has to find: `make mutants`."""
