"""The documentation as a site: what mkdocs is told beside mkdocs.yml, and pages that are made of the code."""
