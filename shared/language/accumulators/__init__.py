"""The accumulators of `$group`: parsed form (`spec`), implementation by partial, merge and finish (`table`)."""
