"""The contract's tests of settings on netdevsim, as a card whose driver takes them all.

Not those that give a VF away: its netdev is a dummy link here, without a tie to a PCI function once it
is in another namespace.
"""

from __future__ import annotations

from contract.test_reset import *  # noqa: F403
from contract.test_settings import *  # noqa: F403
from contract.test_whole_plans import test_observation_shows_pfs_and_vfs_at_home  # noqa: F401

del test_settings_survive_that_the_vf_is_given_and_comes_home  # noqa: F821
del test_reset_of_a_vf_in_a_namespace_fails_without_a_change  # noqa: F821
