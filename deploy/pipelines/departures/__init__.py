"""New York departures of 2013: which hours had fewer flights, or more, than that airport usually has then."""
