package rolling

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// complete takes the marks of a roll that is through off its nodes, the one that says so last: a run that dies on the way
// leaves what the next one knows to be over.
func (d *roll) complete(ctx context.Context) error {
	if d.state.work != d.opts.work() {
		return nil
	}
	values, last := map[string]string{}, ""
	for name, m := range d.state.marks {
		values[name] = d.state.nodes[name].Annotations[Annotation]
		if m.Complete {
			last = name
		}
	}
	for _, name := range d.state.former {
		values[name] = d.state.nodes[name].Annotations[Annotation]
	}
	for name, n := range d.nodes {
		delete(values, name)
		if n.mark != nil && !n.deleted {
			values[name] = n.stands
			if n.mark.Complete {
				last = name
			}
		}
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(values)), func(name string) bool { return name == last })
	if last != "" {
		names = append(names, last)
	}
	for _, name := range names {
		if err := ignoreGone(d.marks.replace(ctx, name, values[name], nil)); err != nil {
			d.emit(Warned{Text: fmt.Sprintf("the roll is through, but its mark stays on node/%s: %v; it means nothing any more", name, err)})
			return nil
		}
	}
	return nil
}
