"""Pages that are made of the code when the site is built."""
