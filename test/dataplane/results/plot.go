package results

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// The measures of the plot, in pixels, and of its time axis, in seconds since the drain began.
const (
	plotWidth   = 860
	panelHeight = 92
	panelGap    = 34
	plotLeft    = 200
	plotRight   = 24
	plotTop     = 64
	plotBottom  = 44
	timeFrom    = -3
	timeTo      = 20
)

// panel is one balancer's part of the plot: the mean of failed requests a second over the runs of each tool.
type panel struct {
	title string
	means map[string][]float64 // by tool, from timeFrom on
	runs  map[string]int
}

// Plot is an SVG of failed requests per second over time, kubectl drain against safedrain, a panel for each balancer. It
// has no background, and colours for a light and for a dark page.
func Plot(records []*Record, titles Titles) string {
	var panels []panel
	top := 0.0 // of all value axes, so that panels compare
	for _, b := range titles.Balancers {
		p := panel{title: b.Name, means: map[string][]float64{}, runs: map[string]int{}}
		for _, tool := range []string{Kubectl, Safedrain} {
			p.means[tool], p.runs[tool] = mean(records, Key{Experiment: titles.Plotted, Balancer: b.Name, Tool: tool})
			for _, v := range p.means[tool] {
				top = max(top, v)
			}
		}
		if p.runs[Kubectl]+p.runs[Safedrain] > 0 {
			panels = append(panels, p)
		}
	}
	var b strings.Builder
	height := plotTop + len(panels)*(panelHeight+panelGap) + plotBottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title">`+"\n",
		plotWidth, height, plotWidth, height)
	b.WriteString(plotStyle)
	fmt.Fprintf(&b, `<title id="title">Failed requests per second during a drain: kubectl drain and safedrain</title>`+"\n")
	legend(&b)
	for i := range panels {
		panels[i].draw(&b, float64(plotTop+i*(panelHeight+panelGap)), niceCeiling(top))
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" class="note">seconds since the drain began; mean of all runs in both proxy modes</text>`+"\n", plotLeft, height-12)
	b.WriteString("</svg>\n")
	return b.String()
}

const plotStyle = `<style>
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.note, .tick { fill: #57606a; font-size: 11px; }
.tick { text-anchor: middle; }
.value { fill: #57606a; font-size: 11px; text-anchor: end; }
.axis { stroke: #8c959f; stroke-width: 1; }
.start { stroke: #8c959f; stroke-width: 1; stroke-dasharray: 3 3; }
.kubectl { stroke: #cf222e; fill: #cf222e; }
.safedrain { stroke: #0969da; fill: #0969da; }
path { fill-opacity: 0.18; stroke-width: 2; stroke-linejoin: round; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.note, .tick, .value { fill: #9da7b3; }
.axis, .start { stroke: #6e7681; }
.kubectl { stroke: #ff7b72; fill: #ff7b72; }
.safedrain { stroke: #79c0ff; fill: #79c0ff; }
}
</style>
`

func legend(b *strings.Builder) {
	fmt.Fprintf(b, `<text x="%d" y="22">Failed requests per second while one node is drained</text>`+"\n", plotLeft)
	for i, tool := range []string{Kubectl, Safedrain} {
		x := plotLeft + i*130
		fmt.Fprintf(b, `<path class="%s" d="M%d 40h22"/><text x="%d" y="44">%s</text>`+"\n", tool, x, x+30, map[string]string{
			Kubectl: "kubectl drain", Safedrain: "safedrain",
		}[tool])
	}
}

// mean averages the failures of each second over the runs of a tool, whichever mode and number they have. A run that has
// ended counts as it was at its end; its very last second may be less than one, and is left out.
func mean(records []*Record, of Key) (means []float64, runs int) {
	means = make([]float64, timeTo-timeFrom)
	for _, r := range records {
		if r.Experiment != of.Experiment || r.Balancer != of.Balancer || r.Tool != of.Tool || len(r.Series.Failed) < 2 {
			continue
		}
		runs++
		for i := range means {
			at := min(i+timeFrom-r.Series.From, len(r.Series.Failed)-2)
			if at >= 0 {
				means[i] += float64(r.Series.Failed[at])
			}
		}
	}
	for i := range means {
		means[i] /= float64(max(runs, 1))
	}
	return means, runs
}

// draw puts a panel at a height.
func (p *panel) draw(b *strings.Builder, top, ceiling float64) {
	base := top + panelHeight
	fmt.Fprintf(b, `<text x="12" y="%.0f">%s</text>`+"\n", top+16, html.EscapeString(p.title))
	fmt.Fprintf(b, `<text x="12" y="%.0f" class="note">%d + %d runs</text>`+"\n", top+34, p.runs[Kubectl], p.runs[Safedrain])
	fmt.Fprintf(b, `<text x="%d" y="%.0f" class="value">%s</text><text x="%d" y="%.0f" class="value">0</text>`+"\n",
		plotLeft-6, top+10, number(ceiling), plotLeft-6, base)
	fmt.Fprintf(b, `<path class="axis" fill="none" d="M%d %.0fV%.0fH%d"/>`+"\n", plotLeft, top, base, plotWidth-plotRight)
	fmt.Fprintf(b, `<path class="start" d="M%.1f %.0fV%.0f"/>`+"\n", xOf(0), top, base)
	for t := 0; t <= timeTo; t += 5 {
		fmt.Fprintf(b, `<text x="%.1f" y="%.0f" class="tick">%d</text>`+"\n", xOf(float64(t)), base+15, t)
	}
	for _, tool := range []string{Kubectl, Safedrain} {
		if p.runs[tool] > 0 {
			fmt.Fprintf(b, `<path class="%s" d="%s"/>`+"\n", tool, steps(p.means[tool], base, panelHeight/ceiling))
		}
	}
}

// steps is the outline of values, each as wide as its second.
func steps(values []float64, base, scale float64) string {
	var d strings.Builder
	fmt.Fprintf(&d, "M%.1f %.1f", xOf(timeFrom), base)
	for i, v := range values {
		fmt.Fprintf(&d, "V%.1fH%.1f", base-v*scale, xOf(float64(timeFrom+i+1)))
	}
	fmt.Fprintf(&d, "V%.1f", base)
	return d.String()
}

func xOf(second float64) float64 {
	return plotLeft + (second-timeFrom)*(plotWidth-plotLeft-plotRight)/(timeTo-timeFrom)
}

// niceCeiling is the end of an axis: 1, 2, 2.5 or 5 times a power of ten.
func niceCeiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5, 10} {
		if v <= m*power {
			return m * power
		}
	}
	return 10 * power
}
