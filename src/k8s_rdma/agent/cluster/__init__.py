"""The cluster that the agent is part of: what it asks and tells there."""
