package kvevents

// lose numbers batches and keeps them for a replay, but sends them to nobody.
func (p *Publisher) lose(payloads ...[]byte) {
	p.mu.Lock()
	peers := p.peers
	p.peers = nil
	p.mu.Unlock()
	for _, payload := range payloads {
		p.Publish(payload)
	}
	p.mu.Lock()
	p.peers = peers
	p.mu.Unlock()
}

// hangUp breaks the subscribers' connections, and returns when none is left.
func (p *Publisher) hangUp() {
	for p.Subscribers() > 0 {
		p.mu.Lock()
		for peer := range p.peers {
			peer.conn.Close()
		}
		p.mu.Unlock()
	}
}
