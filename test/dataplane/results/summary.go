package results

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/safedrain/safedrain/test/dataplane/load"
)

// group is the runs of one experiment, balancer and mode, by tool.
type group struct {
	experiment, balancer, mode string
	runs                       map[string][]*Record
}

// groups collects the records in the order of the experiments and balancers given.
func groups(records []*Record, experiments, balancers []string) []*group {
	byKey := map[Key]*group{}
	var all []*group
	for _, r := range records {
		k := Key{Experiment: r.Experiment, Balancer: r.Balancer, Mode: r.Mode}
		if byKey[k] == nil {
			byKey[k] = &group{r.Experiment, r.Balancer, r.Mode, map[string][]*Record{}}
			all = append(all, byKey[k])
		}
		byKey[k].runs[r.Tool] = append(byKey[k].runs[r.Tool], r)
	}
	slices.SortFunc(all, func(a, b *group) int {
		return cmp.Or(cmp.Compare(slices.Index(experiments, a.experiment), slices.Index(experiments, b.experiment)),
			cmp.Compare(slices.Index(balancers, a.balancer), slices.Index(balancers, b.balancer)), cmp.Compare(b.mode, a.mode))
	})
	return all
}

// markPaused marks the mode of every group with a run of the build whose return had a pause, and reports whether there is one.
func markPaused(all []*group) bool {
	marked := false
	for _, g := range all {
		if slices.ContainsFunc(g.runs[Safedrain], func(r *Record) bool { return r.Build == paused }) {
			g.mode += "*"
			marked = true
		}
	}
	return marked
}

// span is the least and the greatest of some values.
type span struct{ low, high float64 }

func spanOf(records []*Record, value func(*Record) float64) span {
	s := span{math.Inf(1), math.Inf(-1)}
	for _, r := range records {
		v := value(r)
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
	return s
}

// String is "3" or "3-7", with one decimal where the values are no whole numbers.
func (s span) String() string {
	if math.IsInf(s.low, 0) {
		return "-"
	}
	low, high := number(s.low), number(s.high)
	if low == high {
		return low
	}
	return low + "–" + high
}

func number(v float64) string {
	if v == math.Trunc(v) {
		return strconv.Itoa(int(v))
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func failed(r *Record) float64 { return float64(r.Failed()) }
func cut(r *Record) float64    { return float64(r.New.Cut) }
func broken(r *Record) float64 { return float64(r.Broken) }

// lasted is the time from the first to the last failure, in tenths of a second.
func lasted(r *Record) float64 { return math.Round(10*r.Span()) / 10 }

// classes lists how requests failed over all runs, the most frequent first.
func classes(records []*Record) string {
	var sum load.Counts
	for _, r := range records {
		sum.Add(r.New)
	}
	kinds := slices.DeleteFunc(slices.Clone(load.Classes), func(c load.Class) bool { return c == load.OK || c == load.Cut || sum.Of(c) == 0 })
	slices.SortStableFunc(kinds, func(a, b load.Class) int { return sum.Of(b) - sum.Of(a) })
	words := make([]string, 0, len(kinds))
	for _, c := range kinds {
		words = append(words, fmt.Sprintf("%s %d%%", c, int(math.Round(100*float64(sum.Of(c))/float64(sum.Failed()-sum.Cut)))))
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
}

// requests is how many new connections were made in all.
func requests(records []*Record) int {
	n := 0
	for _, r := range records {
		n += r.New.Scheduled
	}
	return n
}
