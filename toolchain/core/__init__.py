"""General modules that do not depend on stages or images: files, processes, locks, errors, output."""
