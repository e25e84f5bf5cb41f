package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
)

// shape holds three numbers for each subject of MMLU in the order of their
// names: its test questions, the bytes of its 5-shot prefix, and the mean bytes
// of a question at the end of a prompt. TestShapeIsMeasured takes them anew.
var shape = []int{
	100, 883, 185, 135, 1011, 237, 152, 2122, 300, 100, 2242, 324, 265, 1265, 229, 144, 1584, 331, 100, 1385, 239,
	100, 2826, 418, 100, 1546, 239, 173, 1723, 468, 102, 1464, 288, 100, 1155, 263, 235, 989, 165, 114, 1693, 400,
	145, 1031, 165, 378, 1499, 177, 126, 1806, 387, 100, 1278, 176, 310, 1729, 346, 203, 1278, 280, 100, 2983, 437,
	165, 11629, 1630, 198, 1461, 204, 193, 1851, 334, 390, 1391, 294, 270, 1357, 195, 238, 1361, 310, 151, 1545, 386,
	545, 1964, 284, 216, 2587, 504, 204, 8923, 1447, 237, 4944, 1589, 223, 1056, 199, 131, 1129, 237, 121, 2472, 434,
	108, 1353, 307, 163, 1627, 299, 112, 2376, 294, 103, 945, 186, 234, 1527, 261, 100, 1142, 201, 783, 749, 181,
	346, 1806, 304, 895, 2110, 410, 306, 2131, 294, 311, 1035, 249, 324, 1925, 268, 282, 2208, 434, 1534, 6663, 1225,
	272, 3865, 792, 612, 2327, 361, 110, 1549, 253, 245, 5388, 828, 201, 1659, 322, 100, 1665, 276, 166, 1141, 225,
	171, 722, 140,
}

// spread holds quantiles of a question's bytes over the mean of its subject,
// all 14,042 questions together, at the shares of spreadAt. The longest of a
// thousand (up to 10.5 times the mean) are left out.
var (
	spreadAt = []float64{0, .01, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, .99, 1}
	spread   = []float64{.12, .31, .52, .64, .74, .84, .93, 1.01, 1.12, 1.28, 1.55, 1.81, 2.55, 4.3}
)

// words are what synthetic texts are made of.
var words = strings.Fields(`
above again almost animal answer autumn balance bird blue border bread bridge brother brown build butter candle carry castle
change circle clear cloud cold common copper corner cotton country cross dance deep desert distance doctor door dream earth
east engine evening every family famous farmer father field finger fire flower follow forest garden general gentle glass
gold grain green harbour heavy history honest horse house hundred inside iron island journey kitchen ladder language large
letter level library light listen little market matter measure metal middle minute mirror money morning mother mountain
music narrow nation nature needle never north number ocean office orange order paper people pepper picture plain planet
pocket point power pretty promise proper quarter question quiet rather reason river round school season second secret seven
shadow silver simple sister slow small soldier south spring square station steel stone story street strong sudden summer
sugar surface table teacher thunder ticket together tower travel twelve under valley village voice wagon water weather
welcome window winter without wonder wooden world yellow young`)

// synthesize makes the synthetic set: as many topics and questions as MMLU,
// with prefixes and questions as long. It is one fixed set, whatever the seed
// of a workload, so that a seed changes the order alone, as it does with MMLU.
func synthesize() []subject {
	rng := newRand(0, syntheticStream)
	var subjects []subject
	for s := range slices.Chunk(shape, 3) {
		name := fmt.Sprintf("synthetic_topic_%02d", len(subjects)+1)
		const answer = len(" A\n\n")
		left := s[1] - len(introduction(name)) - shots*answer
		answered := make([]question, shots)
		for k := range answered {
			bytes := left / (shots - k)
			answered[k] = synthesizeQuestion(rng, bytes)
			left -= bytes
		}
		questions := make([]question, s[0])
		for k := range questions {
			questions[k] = synthesizeQuestion(rng, int(float64(s[2])*quantile(rng.Float64())))
		}
		subjects = append(subjects, newSubject(name, answered, questions))
	}
	return subjects
}

// quantile interpolates spread at share u, 0 <= u < 1.
func quantile(u float64) float64 {
	i := sort.SearchFloat64s(spreadAt[1:], u) + 1
	return spread[i-1] + (spread[i]-spread[i-1])*(u-spreadAt[i-1])/(spreadAt[i]-spreadAt[i-1])
}

// synthesizeQuestion makes a question of the given size, or a little above if
// that is too small to hold one; half of it is question, half the choices.
func synthesizeQuestion(rng *rand.Rand, bytes int) question {
	left := max(bytes-questionFrame, 8)
	choice := max(left/8, 1)
	q := question{5: string("ABCD"[rng.IntN(4)])}
	for i := 1; i <= 4; i++ {
		q[i] = text(rng, choice)
	}
	q[0] = text(rng, left-4*choice)
	return q
}

// text is n bytes of words; the last may be cut short.
func text(rng *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[rng.IntN(len(words))])
	}
	return b.String()[:n]
}
