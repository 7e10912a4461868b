from hypothesis import settings

# Examples are small; on a busy machine their timings say nothing.
settings.register_profile("objectives", deadline=None)
settings.load_profile("objectives")
