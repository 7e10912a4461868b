from hypothesis import settings

# Examples are small; on a busy machine their timings say nothing.
settings.register_profile("rlvr", deadline=None)
settings.load_profile("rlvr")
