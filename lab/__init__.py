"""A hardware lab in a box: guests with real SR-IOV and verbs of software, from Debian's packages alone."""
