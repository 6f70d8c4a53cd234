"""The scheduler extender: filter, prioritize, bind."""
