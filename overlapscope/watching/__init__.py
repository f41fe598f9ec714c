"""Running programs: plain steps timed all the time, and short recordings now and then, when asked or by the clock."""
