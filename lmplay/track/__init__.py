"""Trackers and callbacks of users, behind one small interface; a tracker's library is imported when it is asked for.  Stats floor, no torch."""
