"""Pictures and pages of studies and reproduced figures."""
