"""The figures of the studies, each drawn from a stored document alone: file suffix -> figure, one message each."""
