"""The same work for this package and for what one would take instead, measured in one run; see docs/benchmarks.md.

Nothing of the package imports this.
"""
