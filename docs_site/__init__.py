"""The documentation as a site: settings of mkdocs beside mkdocs.yml, and pages that are made of the code."""
