"""What a measurement leaves: frozen results, their estimates, their words and their files."""
