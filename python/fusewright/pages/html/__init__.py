"""The pages of `fusewright report`: HTML, CSS and SVG, written by hand. Everything that a user named is escaped."""
