package experiments

import (
	"slices"
	"time"

	"github.com/safedrain/safedrain/test/dataplane"
	"github.com/safedrain/safedrain/test/dataplane/balancers"
	"github.com/safedrain/safedrain/test/dataplane/results"
)

// Act is what is done to the nodes.
type Act string

// The acts.
const (
	// DrainOne drains one node, and for safedrain puts it back under load.
	DrainOne Act = "drain"
	// Rolling drains every node, one after another, and puts each back before the next.
	Rolling Act = "rolling"
	// PowerOff drains one node and switches it off at once.
	PowerOff Act = "power-off"
	// ScaleDown halves the replicas of every workload.
	ScaleDown Act = "scale-down"
	// Surge drains the node with the only pod of each workload.
	Surge Act = "surge"
	// Maintenance takes every node through a drain, a command and the way back: safedrain by --rolling, kubectl in a loop.
	Maintenance Act = "maintenance"
)

// Subject is a Service that is watched during a round, with pods of its own.
type Subject struct {
	// Experiment is the name under which it is recorded.
	Experiment string
	// Balancer is one of [balancers.Names].
	Balancer string
	// Way is how safedrain takes nodes out: the name of a [balancers.Way]; the balancer's best when empty.
	Way string
	// Pods say how its pods behave.
	Pods []dataplane.PodOption
	// Hold asks safedrain to hold its pods until the health check has failed.
	Hold bool
	// Of names the subject whose pods this Service selects, instead of pods of its own: "experiment/balancer".
	Of string
	// Spared says that kubectl need not lose a request here.
	Spared bool
	// Autoscaled has a HorizontalPodAutoscaler own the number of its pods: one at least, and two at most.
	Autoscaled bool
}

func (s *Subject) name() string { return s.Experiment + "/" + s.Balancer }

// Round is one action and the Services that are watched meanwhile.
type Round struct {
	Name     string
	Act      Act
	Subjects []Subject
	// Rate is how many new connections each Service gets a second, and Kept how many kept connections.
	Rate float64
	Kept int
	// DaemonSet has a pod on every node by a DaemonSet instead of a Deployment.
	DaemonSet bool
	// Machines is how many nodes the cluster has; four when zero.
	Machines int
	// Each is how many pods of a workload stand on each node, on Nodes of them; one on every node when zero.
	Each, Nodes int
	// Placed is where the pods stand before the action instead, as many in all: so many on the node that is drained elsewhere,
	// so many on the first of the others, and so on.
	Placed []int
	// Tools are those that do it; kubectl and safedrain when empty. ShortTools are those of the short form, Tools when empty.
	Tools, ShortTools []string
	// Watch is how long requests are counted after kubectl has ended; safedrain's are until the node is back.
	Watch time.Duration
	// Anywhere lets what is evicted come up on any node. Else it fits on no other node, and comes back with its own.
	Anywhere bool
	// Work is how long the command of a maintenance takes on each node, and Upset what goes wrong with the roll.
	Work  time.Duration
	Upset Upset
	// Runs is how often it is carried out at most; zero: as often as every other.
	Runs int
	// Fault happens during a drain by safedrain, which alone is run then.
	Fault *Fault
	// Short says that the round belongs to the short form, with these balancers only.
	Short []string
}

// Rates: those of a round add up to 200 and more new connections a second, and to 50 kept connections.
const (
	manyRate = 25
	fewRate  = 50
)

// After SIGTERM, preStop and a closed listener: the times of the pods.
const (
	shortPreStop = 2 * time.Second // shorter than HAProxy's check, which takes 6 seconds
	longPreStop  = 12 * time.Second
	rollPreStop  = 3 * time.Second // as long as kube-proxy needs, so that moving pods between drains loses nothing
	closedFor    = 5 * time.Second
	startsIn     = 2 * time.Second // until a pod that is brought first is Ready
	workTime     = 5 * time.Second // of the maintenance of a node
)

// behind makes the same subject behind each balancer.
func behind(names []string, s Subject, spared ...string) []Subject {
	out := make([]Subject, 0, len(names))
	for _, name := range names {
		s := s
		s.Balancer, s.Spared = name, slices.Contains(spared, name)
		out = append(out, s)
	}
	return out
}

// Names of the experiments.
const (
	plain        = "drain"
	closed       = "closed-listener"
	preStopShort = "prestop-short"
	preStopLong  = "prestop-long"
	hold         = "hold"
	shared       = "shared-pods"
	upgrade      = "rolling"
	powerOff     = "daemonset-power-off"
	scaleDown    = "scale-down"
	gated        = "gate"
	surged       = "surge"
	surgedByHPA  = "surge-autoscaler"
	maintained   = "maintenance"
)

// Rounds is everything that is measured, in the order in which it is.
func Rounds() []Round {
	check := []string{balancers.HAProxyHealthCheck}
	rounds := []Round{
		{
			Name: "one-node", Act: DrainOne, Rate: manyRate, Kept: 5, Watch: 14 * time.Second,
			Short: []string{balancers.HAProxyHealthCheck, balancers.HAProxyTCP, balancers.NodePort, balancers.MetalLBL2, balancers.MetalLBBGP},
			Subjects: slices.Concat(
				behind(balancers.Names, Subject{Experiment: plain}),
				behind(balancers.Names, Subject{Experiment: closed, Pods: []dataplane.PodOption{
					dataplane.WithSIGTERM(dataplane.CloseListener(closedFor)),
				}}),
			),
		},
		{
			Name: "hold-and-shared", Act: DrainOne, Rate: fewRate, Kept: 13, Watch: 10 * time.Second,
			Subjects: slices.Concat(
				behind(check, Subject{Experiment: hold, Way: "health-check", Hold: true}),
				[]Subject{
					{Experiment: shared, Balancer: balancers.HAProxyHealthCheck},
					{Experiment: shared, Balancer: balancers.MetalLBL2, Of: shared + "/" + balancers.HAProxyHealthCheck},
					{Experiment: shared, Balancer: balancers.MetalLBBGP, Of: shared + "/" + balancers.HAProxyHealthCheck},
				},
			),
		},
		{
			Name: "prestop", Act: DrainOne, Rate: manyRate, Kept: 5, Watch: 10 * time.Second,
			Subjects: slices.Concat(
				behind(balancers.Names, Subject{Experiment: preStopShort, Pods: []dataplane.PodOption{dataplane.WithPreStop(shortPreStop)}},
					balancers.MetalLBL2, balancers.MetalLBBGP),
				behind(check, Subject{Experiment: preStopLong, Way: "health-check", Pods: []dataplane.PodOption{dataplane.WithPreStop(longPreStop)}}, check...),
				behind(balancers.Names[1:], Subject{Experiment: preStopLong, Pods: []dataplane.PodOption{dataplane.WithPreStop(longPreStop)}},
					balancers.MetalLBL2, balancers.MetalLBBGP),
			),
		},
		{
			Name: "rolling", Act: Rolling, Rate: fewRate, Kept: 10, Watch: 2 * time.Second,
			Subjects: behind(balancers.Names, Subject{Experiment: upgrade, Pods: []dataplane.PodOption{dataplane.WithPreStop(rollPreStop)}},
				balancers.MetalLBBGP),
		},
		{
			Name: "power-off", Act: PowerOff, Rate: fewRate, Kept: 10, DaemonSet: true, Watch: 8 * time.Second,
			Subjects: behind(balancers.Names, Subject{Experiment: powerOff}),
		},
		{
			// The ReplicaSet controller takes the replicas that go from the fullest node: of 3, 2 and 1 it takes the 3.
			Name: "scale-down", Act: ScaleDown, Rate: fewRate, Kept: 13, Each: 2, Nodes: 3, Placed: []int{3, 2, 1}, Watch: 12 * time.Second,
			Tools: []string{results.Kubectl, results.Gate},
			// A balancer without a check would send to the fourth node, which has no pod.
			Subjects: behind(slices.DeleteFunc(slices.Clone(balancers.Names), func(name string) bool { return name == balancers.NodePort }), Subject{Experiment: scaleDown, Pods: []dataplane.PodOption{dataplane.WithPreStop(rollPreStop)}},
				balancers.MetalLBL2, balancers.MetalLBBGP),
		},
		{
			Name: "gate", Act: DrainOne, Rate: 2 * fewRate, Kept: 25, Watch: 14 * time.Second,
			Tools: []string{results.Kubectl, results.Gate}, ShortTools: []string{results.Gate},
			Short: []string{balancers.HAProxyHealthCheck, balancers.MetalLBL2},
			Subjects: slices.Concat(
				behind(check, Subject{Experiment: gated, Way: "http"}),
				behind([]string{balancers.MetalLBL2}, Subject{Experiment: gated}),
			),
		},
	}
	return slices.Concat(rounds, []Round{surgeRound()}, maintenanceRounds(), faultRounds())
}

// surgeRound is about Services whose only pod is on the node that is drained.
func surgeRound() Round {
	pods := []dataplane.PodOption{dataplane.WithReadyAfter(startsIn)}
	return Round{
		Name: "surge", Act: Surge, Rate: fewRate, Kept: 13, Each: 1, Nodes: 1, Placed: []int{1}, Anywhere: true, Watch: 14 * time.Second,
		ShortTools: []string{results.Safedrain}, Short: []string{balancers.MetalLBL2},
		Subjects: slices.Concat(
			behind([]string{balancers.HAProxyHealthCheck, balancers.HAProxyTCP, balancers.MetalLBL2}, Subject{Experiment: surged, Pods: pods}),
			behind([]string{balancers.HAProxyHealthCheck}, Subject{Experiment: surgedByHPA, Pods: pods, Autoscaled: true}),
		),
	}
}

// maintenanceRounds take six nodes through a maintenance: undisturbed, killed and resumed, and with a command that fails.
func maintenanceRounds() []Round {
	var rounds []Round
	for _, upset := range []Upset{Undisturbed, Killed, CommandFails} {
		r := Round{
			Name: maintained, Act: Maintenance, Upset: upset, Machines: 6, Work: workTime, Rate: 40, Kept: 10, Watch: 2 * time.Second,
			Subjects: behind(balancers.Names, Subject{Experiment: maintained, Pods: []dataplane.PodOption{dataplane.WithPreStop(rollPreStop)}},
				balancers.MetalLBL2, balancers.MetalLBBGP),
		}
		if upset != Undisturbed {
			r.Name += "-" + string(upset)
			r.Tools, r.Runs = []string{results.Safedrain}, len(killMoments)
			for i := range r.Subjects {
				r.Subjects[i].Experiment = r.Name
			}
		}
		rounds = append(rounds, r)
	}
	return rounds
}

// machines is how many nodes the cluster of the round has.
func (r *Round) machines() int {
	if r.Machines == 0 {
		return nodeCount
	}
	return r.Machines
}

// pods is how many pods a workload of the round has, on how many nodes.
func (r *Round) pods() (each, nodes int) {
	if r.Each == 0 {
		return 1, r.machines()
	}
	return r.Each, r.Nodes
}

// replicas is how many pods a workload of the round has in all.
func (r *Round) replicas() int {
	each, nodes := r.pods()
	return each * nodes
}

// Titles are the texts of the tables.
func Titles() results.Titles {
	t := results.Titles{
		Plotted: plain,
		Experiments: []results.Title{
			{Name: plain, Text: "One node of four is drained; its pods have no preStop and end at SIGTERM, as most do. 25 new connections a second for each Service."},
			{Name: closed, Text: "The same; the pods close their listener at SIGTERM and exit 5 s later."},
			{Name: preStopShort, Text: "The same; the pods sleep 2 s before SIGTERM, which is shorter than HAProxy's health check (6 s)."},
			{Name: preStopLong, Text: "The same; the pods sleep 12 s before SIGTERM, which is longer. Behind HAProxy with the health check nobody tells the balancer anything: safedrain relies on the check, since it knows that the pods outlive it."},
			{Name: hold, Text: "The pods have no preStop, the balancer honours healthCheckNodePort and cannot be told: safedrain makes the check fail first (`--hold`), while the pods serve. 50 new connections a second."},
			{Name: shared, Text: "Several Services, each behind another balancer, select the same pods: one eviction takes the endpoint from all. 50 new connections a second for each."},
			{Name: upgrade, Text: "A rolling upgrade: all four nodes, one after another, each put back before the next. The pods sleep 3 s before SIGTERM. 50 new connections a second."},
			{Name: powerOff, Text: "The pods belong to a DaemonSet, which a drain leaves alone; the node is switched off as soon as the drain has ended. 50 new connections a second."},
			{Name: scaleDown, Text: "`kubectl scale` from 6 replicas to 3, on 3 nodes with 3, 2 and 1 pods: the controller takes them from the fullest node, which is left without an endpoint. The pods sleep 3 s before SIGTERM. 50 new connections a second. With the gate, an autoscaler's update of the scale in its place: a pod of each node is marked to be kept, and stays."},
			{Name: gated, Text: "`kubectl drain` as it is, without the gate and with `safedrain gate` in the cluster (`--mode=enforce`), whose hook for HAProxy is `http`. The pods have no preStop. 100 new connections a second. The gate puts the node back once somebody has uncordoned it; that is counted too."},
		},
		Balancers: []results.Title{
			{Name: balancers.HAProxyHealthCheck, Text: "HAProxy, one server a node, health check on healthCheckNodePort every 2 s, 3 failures; safedrain tells it by an `exec` hook, through its runtime socket"},
			{Name: balancers.HAProxyTCP, Text: "HAProxy with a TCP check of the nodePort, every 2 s, 3 failures; `exec` hook"},
			{Name: balancers.NodePort, Text: "an outside balancer (HAProxy without any check) on the nodePort of every node; `exec` hook"},
			{Name: balancers.MetalLBL2, Text: "MetalLB v0.15.3, L2: one node answers ARP for the address"},
			{Name: balancers.MetalLBBGP, Text: "MetalLB v0.15.3, BGP to a router (FRR) that spreads connections over the nodes (ECMP)"},
		},
	}
	t.Experiments = append(t.Experiments, outageTitles()...)
	for _, f := range faults() {
		t.Experiments = append(t.Experiments, results.Title{Name: f.experiment(), Text: f.Says})
	}
	return t
}

func outageTitles() []results.Title {
	return []results.Title{
		{Name: surged, Text: "Services with one pod, which is on the node that is drained. A new pod takes 2 s to be Ready and fits on every node. `safedrain --surge` starts it first. *Cut* are here connections that HAProxy took while it had no server for them. 50 new connections a second for each."},
		{Name: surgedByHPA, Text: "The same; a HorizontalPodAutoscaler owns the number of pods. In both the Deployment and the autoscaler are afterwards what they were."},
		{Name: maintained, Text: "Six nodes with a pod each, one after another: drained, five seconds of maintenance, put back. By `safedrain --rolling --run ... --uncordon`, and by a loop of `kubectl drain`, `sleep 5`, `kubectl uncordon` that waits for the pods. The pods sleep 3 s before SIGTERM. 40 new connections a second for each."},
		{Name: maintained + "-" + string(Killed), Text: "The same; safedrain is killed (SIGKILL) at the third node: while its balancers withdraw, while the command runs, or while it returns. Then the same command goes on."},
		{Name: maintained + "-" + string(CommandFails), Text: "The same; the command fails on the third node. That ends the roll (exit code 4), with the node drained and every Service on the others. Then a mended command goes on (`--unfinished=resume`)."},
	}
}
