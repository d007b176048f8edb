from _core.paths.delay_split cimport BatchSplitter, Fault

cdef str describe_fault(const Fault* fault, BatchSplitter splitter)
