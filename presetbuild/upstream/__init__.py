"""Where root filesystems come from: one module for each kind of upstream, from a name to the files to fetch."""
