"""Bad cases, their clusters, charts and pages."""
