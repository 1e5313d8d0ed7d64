package cluster

// Snapshot holds listed objects, trimmed.
type Snapshot struct{}

// Index is a view of a Snapshot for one request.
type Index struct{ *Snapshot }
