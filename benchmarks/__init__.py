"""Measurements on a GPU; results/ holds their JSON files, from which the tables in README and
docs are made."""
