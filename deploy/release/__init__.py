"""What `make release` makes of a commit, and what `make release-check` checks of it: docs/release.md."""
