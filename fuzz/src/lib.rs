//! Fuzz targets live under `tests`; see README.md.
