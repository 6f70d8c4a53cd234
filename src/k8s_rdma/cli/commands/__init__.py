"""The options of each command, in a module of its name; it imports what does the work when it runs."""
