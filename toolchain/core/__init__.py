"""General parts that know nothing of stages or images: files, processes, locks, errors, output."""
