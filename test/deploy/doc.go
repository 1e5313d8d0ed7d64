// Package deploy renders what deploy/ holds and, in its tests, has a real API server judge it: every variant of the
// kustomizations and of the chart, under Pod Security; the conditions of the webhooks; the rights that the gate has.
package deploy
