"""Query predicates: `$match` and `$validate`. `parse.parse_predicate` reads them, `match.matches` decides."""
