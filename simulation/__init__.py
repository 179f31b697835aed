"""A fleet on one machine: the same core, runner and agents as in the field, with in-process links
and a virtual clock."""
