"""Failures of the lab."""

from __future__ import annotations


class LabError(Exception):
    """Root of the lab's failures."""


class CannotRun(LabError):  # noqa: N818 - an event, as its name says
    """This machine cannot have the lab; the message is one sentence that says why."""


class MachineDied(LabError):  # noqa: N818 - an event, as its name says
    """A guest ended, or did not come up; the message has the end of its console."""


class CommandFailed(LabError):  # noqa: N818 - an event, as its name says
    """A command in a guest ended with another status than 0; the message has its output."""


class CommandTimedOut(LabError):  # noqa: N818 - an event, as its name says
    """A command in a guest was killed when its time was over; the message has its output so far."""
