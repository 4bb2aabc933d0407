"""Who else hears of a run: trackers and other people's callbacks, behind one small interface.  Stats floor, no torch.

Each tracker's library is imported when it is asked for.
"""
